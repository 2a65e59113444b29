"""gitboot/publish/targets."""
