"""Sphinx configuration."""

import os
import sys
from importlib.metadata import version as installed_version

import torch

sys.path.insert(0, os.path.dirname(__file__))

project = "skscalablegp"
author = "The skscalablegp developers"
copyright = f"2026, {author}"
release = version = installed_version("skscalablegp")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    # Equations without a network: MathJax is copied into the pages.
    "sphinx-mathjax-offline",
    # What the code of a page prints and draws.
    "outputs",
]

exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "obj"
autosummary_generate = True
# Class pages list every method, inherited ones included, but these: they serve the package, or
# are those of a dictionary (a report is one), of a string (an end is one) or of any torch module.
of_torch = [name for name in dir(torch.nn.Module) if name != "forward"]
autosummary_context = {"hidden_methods": ["__init__", *dir(dict), *dir(str), *of_torch]}
# Beside a class page, methods are listed by their own names.
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "skscalablegp"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "skscalablegp"},
    "header_links_before_dropdown": 8,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
# The landing page needs no list of sections beside it.
html_sidebars = {"index": [], "choose": [], "comparison": [], "reference": ["sidebar-nav-bs"]}

# Prompts are not copied with the code behind them.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Without a network the inventories cannot be had; links to other projects then stay plain text.
if os.environ.get("SKSCALABLEGP_DOC_OFFLINE"):
    suppress_warnings = ["ref.ref"]
else:
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
    }

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "doc_module": "skscalablegp",
    "backreferences_dir": "generated/backreferences",
    # Running the examples takes minutes: their recorded outputs are shown, see outputs.py.
    "plot_gallery": False,
    # For examples without a picture of their own, where they are not run.
    "default_thumb_file": os.path.join(os.path.dirname(__file__), "_static", "intervals.png"),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
}
