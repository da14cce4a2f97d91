# bash completion for hadar-sbatch: its own options, and all that sbatch's completion knows.
# Installed as hadar-sbatch in /usr/share/bash-completion/completions, or
# ~/.local/share/bash-completion/completions.

_hadar_sbatch() {
    local word=$2 before=$3
    COMPREPLY=()
    # readline splits --option=value into three words.
    if [[ $word == = ]]; then
        word=
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    case $before in
    --hadar-checkpoint)
        mapfile -t COMPREPLY < <(compgen -W 'yes no restart:20m' -- "$word")
        return
        ;;
    --hadar-copies)
        mapfile -t COMPREPLY < <(compgen -W auto -- "$word")
        return
        ;;
    --hadar-model | --hadar-batch-size | --hadar-throughput | --hadar-steps | --hadar-gang | \
        --hadar-types | --hadar-gpu-memory | --hadar-compute-capability | --hadar-time-on | \
        --hadar-cores | --hadar-mem | --hadar-restart-cost)
        compopt +o default
        return
        ;;
    esac
    _hadar_sbatch_of_sbatch "$@"
    [[ $word == -* ]] || return
    local own='--hadar-model --hadar-batch-size --hadar-throughput --hadar-steps --hadar-gang
        --hadar-types --hadar-gpu-memory --hadar-compute-capability --hadar-time-on
        --hadar-checkpoint --hadar-copies --hadar-cores --hadar-mem --hadar-restart-cost
        --hadar-dry-run --hadar-json --no-hadar --hadar-help --help'
    local -a found
    mapfile -t found < <(compgen -W "$own" -- "$word")
    COMPREPLY+=("${found[@]}")
}

# Reply what sbatch's own completion would, where there is one.
_hadar_sbatch_of_sbatch() {
    if ! complete -p sbatch &>/dev/null; then
        # bash-completion's, from 2.12 on and before.
        if declare -F _comp_load >/dev/null; then
            _comp_load sbatch &>/dev/null
        elif declare -F _completion_loader >/dev/null; then
            _completion_loader sbatch &>/dev/null
        fi
    fi
    local how
    how=$(complete -p sbatch 2>/dev/null) || return 0
    [[ $how =~ \ -F\ ([^ ]+)\  ]] || return 0
    local -a words=(sbatch "${COMP_WORDS[@]:1}")
    local COMP_LINE=sbatch${COMP_LINE#"$1"} COMP_POINT=$((COMP_POINT - ${#1} + 6))
    local -a COMP_WORDS=("${words[@]}")
    "${BASH_REMATCH[1]}" sbatch "$2" "$3"
}

complete -o default -F _hadar_sbatch hadar-sbatch
