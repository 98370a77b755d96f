"""Query-aware allocation of visual tokens for Qwen vision-language models."""
