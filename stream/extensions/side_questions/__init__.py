"""Side questions: each is answered once between two of the run's own answers."""

from stream.extension import Extension

EXTENSION = Extension(name="side_questions", asker="stream.extensions.side_questions.questions:SideQuestions")
