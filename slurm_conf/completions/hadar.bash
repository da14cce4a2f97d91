# bash completion for hadar: the command itself is asked what fits.
# Installed as hadar in /usr/share/bash-completion/completions, or ~/.local/share/bash-completion/completions.

_hadar() {
    local line=${COMP_LINE:0:COMP_POINT} word reply
    COMPREPLY=()
    # In the form for fish each reply is a line, of which the words after a tab are an explanation.
    while IFS=$'\t' read -r reply _; do
        [[ -z $reply ]] || COMPREPLY+=("$reply")
    done < <(_HADAR_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
        _TYPER_COMPLETE_ARGS=$line "$1" 2>/dev/null)
    # For readline a colon ends a word (COMP_WORDBREAKS), so what stands before it is not repeated.
    word=${line##*[[:space:]]}
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}")
    fi
}

# Where nothing fits, files do.
complete -o default -F _hadar hadar
