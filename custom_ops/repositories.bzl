"""The repositories of WORKSPACE: what is on this machine, and nothing to download."""

load(":sources.bzl", "CUDA_RUNTIME")

_TENSORFLOW_FACTS = """
import tensorflow as tf
print(tf.sysconfig.get_include())
print(tf.sysconfig.get_lib())
print("SCALECOM_TENSORFLOW=" + tf.version.VERSION,
      *[flag[2:] for flag in tf.sysconfig.get_compile_flags() if flag.startswith("-D")])
"""

_CUDA_BUILD = """
cc_library(
    name = "runtime",
    srcs = ["{runtime}"],
    visibility = ["//visibility:public"],
)
"""

_TENSORFLOW_BUILD = """
cc_library(
    name = "tensorflow",
    srcs = glob(["lib/libtensorflow_framework.so*"]),
    hdrs = glob(["include/**"]),
    defines = {defines},
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _python(repository_ctx):
    named = repository_ctx.os.environ.get("TF_SCALECOM_PYTHON")
    root = repository_ctx.path(Label("//:WORKSPACE")).dirname
    own = repository_ctx.path(str(root) + "/.venv/bin/python")
    return named or (own if own.exists else "python3")

def _tensorflow_impl(repository_ctx):
    python = _python(repository_ctx)
    result = repository_ctx.execute([python, "-c", _TENSORFLOW_FACTS])
    if result.return_code:
        fail(("Expected a Python with TensorFlow; received {}: {}Name one: " +
              "--repo_env=TF_SCALECOM_PYTHON=path/to/python").format(python, result.stderr))

    # TensorFlow may print lines of its own first.
    include, lib, defines = result.stdout.splitlines()[-3:]
    repository_ctx.symlink(include, "include")
    for file in repository_ctx.path(lib).readdir():
        if file.basename.startswith("libtensorflow_framework.so"):
            repository_ctx.symlink(file, "lib/" + file.basename)
    repository_ctx.file("BUILD", _TENSORFLOW_BUILD.format(defines = repr(defines.split(" "))))

tensorflow = repository_rule(
    implementation = _tensorflow_impl,
    configure = True,
    doc = "The installed TensorFlow: of TF_SCALECOM_PYTHON, else of .venv, else of python3.",
    environ = ["TF_SCALECOM_PYTHON"],
    local = True,
)

def _cuda_impl(repository_ctx):
    home = repository_ctx.os.environ.get("CUDA_HOME")
    nvcc = repository_ctx.path(home + "/bin/nvcc") if home else None
    if not nvcc or not nvcc.exists:
        nvcc = repository_ctx.which("nvcc") or ""
    if nvcc:
        # A dry run says where its toolkit is, be nvcc a link or a script.
        facts = repository_ctx.execute([nvcc, "--dryrun", "-c", "none.cu"]).stderr
        for flag in facts.split("\"-L")[1:]:
            library = repository_ctx.path(flag.split("\"")[0] + "/" + CUDA_RUNTIME)
            if library.exists:
                repository_ctx.symlink(library, CUDA_RUNTIME)
                break
    repository_ctx.file("BUILD", _CUDA_BUILD.format(runtime = CUDA_RUNTIME) if nvcc else "")
    repository_ctx.file("cuda.bzl", "NVCC = {}\n".format(repr(str(nvcc))))

cuda = repository_rule(
    implementation = _cuda_impl,
    configure = True,
    doc = "NVCC, of CUDA_HOME or else of the path, empty without; its runtime, to link with.",
    environ = ["CUDA_HOME", "PATH"],
    local = True,
)

def _stand_in_impl(repository_ctx):
    for path, text in repository_ctx.attr.files.items():
        repository_ctx.file(path, text)

_stand_in = repository_rule(
    implementation = _stand_in_impl,
    attrs = {"files": attr.string_dict()},
)

def _native_rules(language, rules):
    """rules_LANGUAGE with the rules that are built into Bazel."""
    _stand_in(name = "rules_" + language, files = {
        "BUILD": "",
        language + "/BUILD": "",
        language + "/defs.bzl": "".join(["{0} = native.{0}\n".format(rule) for rule in rules]),
    })

def stand_ins():
    """What Bazel's own tools load from elsewhere, whether or not it is used."""
    _native_rules("cc", ["cc_binary", "cc_library", "cc_toolchain", "cc_toolchain_suite"])
    _native_rules("java", ["java_binary", "java_import", "java_runtime", "java_toolchain"])
    _stand_in(name = "remote_coverage_tools", files = {
        "BUILD": """filegroup(
            name = "coverage_report_generator",
            visibility = ["//visibility:public"],
        )""",
    })
