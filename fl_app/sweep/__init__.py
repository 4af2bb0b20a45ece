"""Many runs in one folder: jobs by name, their progress, the table at the end.

``sweep`` plans the jobs of `murmur -m` and does one; ``on_ray`` does many at a time; ``show``
shows them while they run and when they have ended, from the jobs' folders alone.
"""
