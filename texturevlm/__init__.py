"""The texture library by the name of the design: all of it is `arr_coc.texturevlm`."""

from arr_coc.texturevlm import __all__ as __all__
from arr_coc.texturevlm import __dir__ as __dir__
from arr_coc.texturevlm import __getattr__ as __getattr__
