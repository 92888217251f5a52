// SPDX-License-Identifier: Apache-2.0

//go:build linux

package soft

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// compile compiles a C program that does nothing.
func compile(t *testing.T, folder, name string, args ...string) string {
	t.Helper()
	source, path := filepath.Join(folder, name+".c"), filepath.Join(folder, name)
	require.NoError(t, os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600))
	output, err := exec.Command("cc", append([]string{"-o", path, source}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return path
}

func write(t *testing.T, folder, name, text string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
	return path
}

func TestSuits(t *testing.T) {
	folder := t.TempDir()
	plain := compile(t, folder, "plain")
	static := compile(t, folder, "static", "-static", "-nostdlib", "-Wl,-e,main")
	musl := compile(t, folder, "musl", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
	mips := compile(t, folder, "mips")
	text, err := os.ReadFile(mips)
	require.NoError(t, err)
	binary.NativeEndian.PutUint16(text[18:], 8) // e_machine
	require.NoError(t, os.WriteFile(mips, text, 0o700))
	libraries := filepath.Join(folder, "libraries")
	require.NoError(t, os.Mkdir(libraries, 0o700))
	write(t, libraries, "librdmacm.so.1", "")
	early := compile(t, folder, "early", "-Wl,--disable-new-dtags,-rpath,/nowhere:$ORIGIN/libraries")
	late := compile(t, folder, "late", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/libraries")
	self, err := os.Executable()
	require.NoError(t, err)

	cannot := func(path, why string) string { return path + " cannot run on the device: " + why }
	for path, want := range map[string]string{
		plain:  "",
		late:   "",
		static: cannot(static, "it is linked statically, so it has its libraries in itself"),
		musl:   cannot(musl, "it is for the C library musl, and the device's libraries are for glibc"),
		mips:   cannot(mips, "it is for another processor: EM_MIPS, ELFCLASS64, ELFDATA2LSB"),
		early:  cannot(early, "its DT_RPATH has "+libraries+"/librdmacm.so.1, which comes before LD_LIBRARY_PATH"),
		self: cannot(self, "it is a Go program, and one process cannot have Go twice: import "+
			"github.com/verbena-go/verbena/softroce in it, and set VERBENA_DEVICE=soft"),
		write(t, folder, "text", "hello\n"):                 cannot(filepath.Join(folder, "text"), "it is neither a program nor a script"),
		write(t, folder, "nothing", ""):                     cannot(filepath.Join(folder, "nothing"), "it is neither a program nor a script"),
		write(t, folder, "script", "#! /bin/sh -e\n"):       "",
		write(t, folder, "env", "#!/usr/bin/env sh\n"):      "",
		write(t, folder, "lost", "#!/no/such/shell\n"):      "open /no/such/shell: no such file or directory",
		write(t, folder, "of-static", "#!"+static+"\n"):     cannot(static, "it is linked statically, so it has its libraries in itself"),
		write(t, folder, "itself", "#!"+folder+"/itself\n"): folder + "/itself: the interpreter of a script is a script, too",
		filepath.Join(folder, "gone"):                       "open " + folder + "/gone: no such file or directory",
	} {
		if err := suits(path); want == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, want)
		}
	}

	// A program whose bits give the starting user nothing may have other
	// libraries.
	require.NoError(t, os.Chmod(plain, 0o755|os.ModeSetuid|os.ModeSetgid))
	require.NoError(t, suits(plain))
	if os.Geteuid() == 0 {
		for bit, name := range map[os.FileMode]string{os.ModeSetuid: "set-user-ID", os.ModeSetgid: "set-group-ID"} {
			require.NoError(t, os.Chown(plain, 1, 1))
			require.NoError(t, os.Chmod(plain, 0o755|bit))
			require.EqualError(t, suits(plain), cannot(plain, "it has the "+name+" bit, so the system ignores LD_LIBRARY_PATH"))
		}
	}
}

// Whatever a file has, asking about it ends with an answer.
func FuzzSuits(f *testing.F) {
	self, err := os.ReadFile("/bin/true")
	require.NoError(f, err)
	f.Add(self)
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("#!"))
	path := filepath.Join(f.TempDir(), "file")
	f.Fuzz(func(t *testing.T, text []byte) {
		require.NoError(t, os.WriteFile(path, text, 0o700))
		_ = suits(path)
	})
}
