"""What every folder may use: units, files, processes, access to code. No torch."""
