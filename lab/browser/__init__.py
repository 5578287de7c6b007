"""Measurements of the page and the report in the system's Chromium, driven by Playwright:

python -m lab.browser.moves                            # from a slider's move to the frame that shows it
python -m lab.browser.first_picture REPORT.html ...    # from opening a report to its first picture
python -m lab.browser.users 50                         # users at once
python -m lab.browser.axe axe.min.js REPORT.html ...   # accessibility
python -m lab.browser.viewer MemoryViz.js d3.min.js X.pickle   # PyTorch's viewer opens an exported snapshot
python -m lab.browser.shots FOLDER REPORT.html ...     # pictures to look at
python -m lab.browser.large_snapshot FILE              # a snapshot of 1 GB, for `vramcast show FILE --html`
"""
