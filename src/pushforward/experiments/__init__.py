"""The paper's experiments, each one a file, made with the public interface only."""
