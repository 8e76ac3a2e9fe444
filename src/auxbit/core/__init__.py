"""What every package stands on: checks, threads, codes, files, maps, decoders."""
