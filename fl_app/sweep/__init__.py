"""Many runs in one folder: jobs by name, their progress, the table at the end."""
