"""The nouns and arithmetic of scheduling: frozen values, standard library only."""
