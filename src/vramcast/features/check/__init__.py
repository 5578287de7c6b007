"""Does it fit here?"""
