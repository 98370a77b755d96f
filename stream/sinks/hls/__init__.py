"""HTTP live streaming: the source's video with the answers as captions."""
