"""A scikit-learn callback that looks at models while they are fitted."""


class Watch:
    """Shows the model of each iteration to a function.

    `events` says in words what was called, in order.
    """

    def __init__(self, look):
        self.look, self.events = look, []

    def setup(self, estimator, context):
        self.events.append("setup")

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.events.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.events.append(f"end {context.task_name}")
        if context.task_name == "iteration":
            self.look(fitted_estimator)
        return False
