"""One run on the server's side: preparation, data, rounds, its folder, what a person sees."""
