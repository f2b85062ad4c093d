"""What a plugin implements. No module here imports torch at module level."""
