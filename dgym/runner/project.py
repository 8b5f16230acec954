"""Describe the project in the current directory: ``PYTHON project.py REQUEST``.

The interpreter belongs to the environment in which the project, pip and the project's build backend are installed.
REQUEST is JSON. The answer is JSON on the report descriptor.

``{"backend": "hatchling.build", "backend_path": []}`` requests the missing build requirements. The answer is
``{"missing": [...]}`` with the requirements of the backend (PEP 517 and 660) that are not installed.

``{"installed": PLACES, "extras": [...]}`` requests the metadata of the installed project, whose files are below one of
PLACES. The answer has ``name``, ``version``, ``extras`` and ``dependencies``, which are the requirements that apply to
this interpreter.
"""

import json
import os
import sys

_MOST = 10000


def missing_requirements(backend, backend_path):
    """Returns the requirements of the build backend that are not installed. Exits if it cannot be imported."""
    import importlib

    sys.path[:0] = [os.path.abspath(path) for path in backend_path]
    module, _, attribute = backend.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        sys.exit("the build backend %s cannot be imported: %s" % (backend, error))
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    hook = getattr(found, "get_requires_for_build_editable", None) or getattr(
        found, "get_requires_for_build_wheel", None
    )
    # The hook may print; this does no harm, because the answer goes to the report descriptor.
    wanted = list(hook()) if hook is not None else []
    return [requirement for requirement in wanted if not _is_installed(requirement)]


def _is_installed(text):
    requirement = _parsed(text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return True
    for distribution in _distributions():
        if _normalized(distribution[0]) == _normalized(requirement.name):
            return requirement.specifier.contains(distribution[1], prereleases=True)
    return False


def installed_project(places, extras):
    """Returns name, version, extras and dependencies of the distribution whose files are below one of ``places``.

    Exits if it is not found.
    """
    # Links are resolved, because an environment may refer to its files by several paths.
    roots = [os.path.join(os.path.realpath(place), "") for place in places]
    for name, version, where, requires, provided in _distributions():
        if name and os.path.realpath(where).startswith(tuple(roots)):
            return {
                "name": name,
                "version": version,
                "extras": sorted(provided),
                "dependencies": _dependencies(name, requires, extras),
            }
    sys.exit("the installation of the project left no metadata")


def _dependencies(name, requires, extras):
    """Returns the requirements that apply here with ``extras``. An extra may include other extras of the project."""
    parsed = [_parsed(text) for text in requires]
    wanted, chosen, found = list(extras), set(), {}
    while True:
        active = [""] + wanted
        for requirement in parsed:
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in active):
                if _normalized(requirement.name) == _normalized(name):
                    chosen.update(requirement.extras)
                    continue
                requirement.marker = None
                found[str(requirement)] = None
        if chosen <= set(wanted):
            return sorted(found)[:_MOST]
        wanted = sorted(chosen | set(wanted))


def _distributions():
    """Returns name, version, location, requirements and extras of each installed distribution."""
    try:
        from importlib import metadata  # novm
    except ImportError:
        return _distributions_before_38()
    return [
        (
            each.metadata["Name"],
            each.version,
            str(getattr(each, "_path", None) or each.locate_file("")),
            each.requires or [],
            each.metadata.get_all("Provides-Extra") or [],
        )
        for each in metadata.distributions()
    ]


def _distributions_before_38():
    from pip._vendor import pkg_resources

    found = []
    for each in pkg_resources.working_set:
        always = [str(requirement) for requirement in each.requires()]
        marked = [
            "%s; extra == '%s'" % (str(requirement).partition(";")[0], extra)
            for extra in each.extras
            for requirement in each.requires([extra])
            if str(requirement) not in always
        ]
        found.append((each.project_name, each.version, each.egg_info or each.location, always + marked, each.extras))
    return found


def _normalized(name):
    import re

    return re.sub(r"[-_.]+", "-", name).lower()


def _parsed(text):
    from pip._vendor.packaging.requirements import Requirement

    return Requirement(text)


def main(request):
    """Answer one request."""
    report = int(os.environ["DGYM_REPORT_FD"])
    asked = json.loads(request)
    # Python puts the directory of a script first on the path. Its modules would hide packages of the same names.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    if "backend" in asked:
        answer = {"missing": missing_requirements(asked["backend"], asked["backend_path"])}
    else:
        answer = installed_project(asked["installed"], asked["extras"])
    with open(report, "w", closefd=False) as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main(sys.argv[1])
