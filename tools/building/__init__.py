"""How the compiled modules are built: `translate` turns them into C, `libraries` links one library per layer."""
