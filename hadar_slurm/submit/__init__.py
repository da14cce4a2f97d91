"""From a user's command line to the exact sbatch call.

Modules that "import little" are imported at every submission, so a slow import costs every one.
"""
