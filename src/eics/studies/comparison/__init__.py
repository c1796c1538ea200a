"""What changed: between two models of one architecture, or between two sets of prompts on one model.

parts         the parts of a model to which a change is attributed
passes        one run of each model on a batch, as named tensors
attribution   made here, inherited, effect: the numbers of a batch
targets       which number of the logits the effect is measured on
restoring     the true effect: the other model's value, written into the run
drivers       both models in memory, or one after the other with activations on disk
models        the conductor for two models; model_pair has both of them, model_rows what a run keeps
summary       numbers of all prompts, with intervals; model_sentences says what was found
prompt_sets   the conductor for two sets of prompts; what it is made of is called set_...
front         `eics.compare`
"""
