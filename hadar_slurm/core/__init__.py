"""The nouns and arithmetic of scheduling: mostly frozen values, standard library only."""
