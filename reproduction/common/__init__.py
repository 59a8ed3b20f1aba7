"""What the three experiments share."""
