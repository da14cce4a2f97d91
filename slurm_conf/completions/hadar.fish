# fish completion for hadar: the command itself is asked what fits.
# Installed as hadar.fish in /usr/share/fish/vendor_completions.d, or ~/.config/fish/completions.

function __hadar_words
    set -lx _HADAR_COMPLETE complete_fish
    set -lx _TYPER_COMPLETE_FISH_ACTION get-args
    set -lx _TYPER_COMPLETE_ARGS (commandline -cp)
    set -l word (commandline -ct)
    # Of --option=value the value alone is replied, and fish wants the whole word.
    set -l before (string match -r -- '^--[^=]+=' $word)
    set -l found (command hadar 2>/dev/null | string match -rv '^$')
    if not set -q found[1]
        set found (__fish_complete_path (string replace -- "$before" '' $word))
    end
    for reply in $found
        printf '%s\n' "$before$reply"
    end
end

complete --command hadar --no-files --arguments '(__hadar_words)'
