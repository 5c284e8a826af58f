"""What the clients are put through."""
