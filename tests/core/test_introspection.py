from rollax.core.introspection import accepted, call_accepted, overrides


class Base:
    def first(self): ...

    def second(self): ...


class Child(Base):
    def first(self): ...


class Grandchild(Child):
    def second(self): ...


def test_inherited_overrides_count():
    assert overrides(Child, Base, "first")
    assert overrides(Grandchild, Base, "first")
    assert not overrides(Base, Base, "first")
    assert not overrides(Child, Base, "second")


def test_all_of_several_methods_are_overridden():
    assert not overrides(Child, Base, "first", "second")
    assert overrides(Grandchild, Base, "first", "second")


def test_only_the_accepted_arguments_are_passed():
    assert accepted(lambda obs_batch, *, explore=True: None) == {"obs_batch", "explore"}
    assert accepted(lambda obs_batch, **others: None) is None
    assert call_accepted(lambda x, b: (x, b), 1, a=2, b=3) == (1, 3)
