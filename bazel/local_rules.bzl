"""Stand-ins for repositories that old Bazels' own tools load and would download.

They hand on the rules that are built into those Bazels. Later Bazels bring their own.
"""

def _stand_in_impl(repository_ctx):
    repository_ctx.file("WORKSPACE", "")
    for path, content in repository_ctx.attr.files.items():
        repository_ctx.file(path, content)

_stand_in = repository_rule(
    implementation = _stand_in_impl,
    attrs = {"files": attr.string_dict()},
)

def _hand_on(rules):
    """Text of a .bzl file that defines each of `rules` as the native rule of that name."""
    return "".join(["%s = native.%s\n" % (rule, rule) for rule in rules])

_CC_RULES = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
]

_JAVA_RULES = [
    "java_binary",
    "java_import",
    "java_library",
    "java_plugin",
    "java_runtime",
    "java_test",
    "java_toolchain",
]

def local_rules():
    for name, path, rules in [
        ("rules_cc", "cc/defs.bzl", _CC_RULES),
        ("rules_java", "java/defs.bzl", _JAVA_RULES),
        ("rules_shell", "shell/sh_test.bzl", ["sh_test"]),
    ]:
        _stand_in(
            name = name,
            files = {
                "BUILD": "",
                path.split("/")[0] + "/BUILD": "",
                path: _hand_on(rules),
            },
        )
    _stand_in(
        name = "remote_coverage_tools",
        files = {"BUILD": "filegroup(name = \"coverage_report_generator\", srcs = [], visibility = [\"//visibility:public\"])\n"},
    )
