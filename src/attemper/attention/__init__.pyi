from . import huggingface as huggingface
