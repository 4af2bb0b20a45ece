_murmur() {
  local word="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
  word="${word##* }"
  COMPREPLY=($(compgen -W "$_murmur_words" -- "$word"))
  # Bash takes "=" for the start of a word of its own.
  [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
}
complete -o default -o nospace -F _murmur murmur
