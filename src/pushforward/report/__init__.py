"""Pictures and pages out of results."""
