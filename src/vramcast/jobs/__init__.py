"""What is trained, said in one typed description, and the readers and the run that it needs.

`schema` and `readers` import neither torch nor any model library; `run` and `components` do, when a job is run.
"""
