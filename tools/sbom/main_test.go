// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const status = `Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12+deb13u1
Description: C library
 Package: not a field

Package: librdmacm1t64
Architecture: amd64
Version: 1:56.1-1
`

// describe returns the bill of the test's own program and of packages.
func describe(t *testing.T, packages string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "status")
	if err := os.WriteFile(file, []byte(packages), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := newBill("image", "1.2", "2026-01-02T03:04:05Z")
	if err := b.addProgram(program); err != nil {
		return "", err
	}
	if err := b.addPackages(file); err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = b.write(&out)
	return out.String(), err
}

// The bill has the program, its modules, Go and the packages, and is the same
// each time.
func TestBill(t *testing.T) {
	text, err := describe(t, status)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if again, err := describe(t, status); err != nil || again != text {
			t.Fatalf("another text: %v\n%s\n%s", err, text, again)
		}
	}
	var bom struct {
		Components   []struct{ PURL string }
		Dependencies []struct {
			Ref       string
			DependsOn []string
		}
	}
	if err := json.Unmarshal([]byte(text), &bom); err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, c := range bom.Components {
		urls = append(urls, c.PURL)
	}
	found := strings.Join(urls, " ")
	for _, want := range []string{
		"pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go"), "pkg:golang/github.com/CycloneDX/cyclonedx-go@", "pkg:deb/debian/libc6@2.41-12%2Bdeb13u1?arch=amd64",
		"pkg:deb/debian/librdmacm1t64@1%3A56.1-1?arch=amd64",
	} {
		if !strings.Contains(found, want) {
			t.Errorf("no %s in %s", want, found)
		}
	}
	if n := len(bom.Dependencies); n != 2 {
		t.Errorf("%d components need others: %+v", n, bom.Dependencies)
	}
}

func TestBadPackages(t *testing.T) {
	if _, err := describe(t, "Package: libc6\n"); err == nil || !strings.Contains(err.Error(), "without a name, a version") {
		t.Fatal(err)
	}
}
