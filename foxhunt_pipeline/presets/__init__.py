"""Configuration presets."""
