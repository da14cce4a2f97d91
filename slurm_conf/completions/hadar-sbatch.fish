# fish completion for hadar-sbatch: its own options, and all that sbatch's completion knows.
# Installed as hadar-sbatch.fish in /usr/share/fish/vendor_completions.d, or ~/.config/fish/completions.

complete -c hadar-sbatch --wraps sbatch
complete -c hadar-sbatch -l hadar-model -x -d 'What is trained'
complete -c hadar-sbatch -l hadar-batch-size -x -d 'Its batch size'
complete -c hadar-sbatch -l hadar-throughput -x -d 'Steps/s of the whole gang on each GPU type'
complete -c hadar-sbatch -l hadar-steps -x -d 'Training steps in all'
complete -c hadar-sbatch -l hadar-types -x -d 'GPU types that the job may have'
complete -c hadar-sbatch -l hadar-gpu-memory -x -d 'Least memory of a GPU, such as 40G'
complete -c hadar-sbatch -l hadar-time-on -x -d 'GPU type for which --time is given, such as v100'
complete -c hadar-sbatch -l hadar-compute-capability -x -d 'Least compute capability of a GPU, such as 8.0'
complete -c hadar-sbatch -l hadar-gang -x -d 'GPUs, in any uniform layout, per node and nodes, or of a copy by type'
complete -c hadar-sbatch -l hadar-checkpoint -x -a 'yes no restart:20m' -d 'Whether the job saves and resumes'
complete -c hadar-sbatch -l hadar-copies -x -a auto -d 'Train in up to so many copies at once'
complete -c hadar-sbatch -l hadar-cores -x -d 'Cores of a copy by GPU type, such as v100:4,k80:16'
complete -c hadar-sbatch -l hadar-mem -x -d 'Memory of a copy by GPU type, such as v100:16G,k80:64G'
complete -c hadar-sbatch -l hadar-restart-cost -x -d 'Seconds from a move until it trains again'
complete -c hadar-sbatch -l hadar-dry-run -d 'Submit nothing, show what each GPU type would give'
complete -c hadar-sbatch -l hadar-json -d 'Print one JSON object'
complete -c hadar-sbatch -l no-hadar -d 'Submit with plain sbatch'
complete -c hadar-sbatch -l hadar-help -d 'List these options'
complete -c hadar-sbatch -l help -d 'List these options'
