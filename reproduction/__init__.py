"""The paper's tables and figures, made again with pushforward from a checkout."""
