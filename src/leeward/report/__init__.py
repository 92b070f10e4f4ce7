"""The tear sheet: one self-contained HTML file made from the files of a run."""
