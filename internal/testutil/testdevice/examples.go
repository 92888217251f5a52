// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"flag"
	"os"
	"strings"
	"testing"
)

// Main runs the tests and examples of a package, for TestMain. It skips the
// named examples unless the tests use the device in user space, without limits:
// an example cannot skip itself.
func Main(m *testing.M, examples ...string) int {
	flag.Parse()
	if !Soft() || os.Getenv("VERBENA_LIMITS") != "" {
		skip := flag.Lookup("test.skip").Value
		if err := skip.Set(skipping(skip.String(), examples)); err != nil {
			panic(err) // the flag is a text
		}
	}
	return m.Run()
}

// skipping adds examples to a pattern of what to skip.
func skipping(pattern string, examples []string) string {
	if pattern != "" {
		pattern += "|"
	}
	return pattern + "^(" + strings.Join(examples, "|") + ")$"
}
