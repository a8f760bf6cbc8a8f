// No licence here: check_words must refuse this.
