"""``CppLibrary``: compiled libraries that a wheel contains for other versions of torch."""

from __future__ import annotations

from accelkit.cpp_library import CppLibrary


def test_the_newest_torch_for_which_the_wheel_has_a_library_is_recommended(tmp_path, monkeypatch):
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "empty.cpp").write_text("void empty() {}\n")
    library = CppLibrary("acme", tmp_path / "csrc")
    (tmp_path / "prebuilt").mkdir()
    for minor in ("1.10", "1.9", "1.11", "0.12"):
        library._prebuilt(minor).touch()
    monkeypatch.setenv("ACME_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-compiler")
    why, what_to_do = library.problem()
    assert "only for torch 0.12 and 1.9 and 1.10 and 1.11. The library" in why
    assert "or install torch 1.11; to compile" in what_to_do
