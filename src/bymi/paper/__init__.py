"""Reproducing the paper: its studies, its printed tables, the attacks of the red team, and the pages of results.

Modules `study_*` say which runs a study has, `page_*` turn finished runs or committed JSON into tables and figures. The library
does not import this package; only the command line does.
"""
