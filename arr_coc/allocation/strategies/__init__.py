"""Strategies that choose the regions of a frame; `arr_coc.allocation.attending` names them."""
