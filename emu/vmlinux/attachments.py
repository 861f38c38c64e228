"""stub"""


class Attachment:
    pass


class Attachments:
    def __init__(self, *a):
        pass

    def all(self):
        return []
