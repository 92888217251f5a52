// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package dl

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Variable is the environment variable that selects a device of the program in
// place of the installed libraries.
const Variable = "VERBENA_DEVICE"

// packages maps the known devices to the packages that provide them.
var packages = map[string]string{"soft": "github.com/verbena-go/verbena/softroce"}

// Lookup returns the address of a C function, or nil if there is none of that
// name.
type Lookup func(symbol string) unsafe.Pointer

// Device has functions that take the place of those of all libraries.
type Device struct {
	Find Lookup
	// Open makes the device ready. options is the part of Variable after the
	// name and a colon. Open is called at most once, and not if Use selected
	// the device.
	Open func(options string) error
}

// Provide adds a device. The package that provides the device calls it in init.
func Provide(name string, d Device) { devices.provide(name, d) }

// Use selects a device by name, and overrides the environment variable
// Variable. It fails if the program does not have the device, or if a library
// was already loaded from elsewhere.
func Use(name string) error { return devices.use(name) }

var devices choice

// choice is the origin of functions. The first library that is loaded settles
// it.
type choice struct {
	mutex    sync.Mutex
	provided map[string]Device
	name     string // of the device; empty for the installed libraries
	settled  string // the library that was loaded first; empty if none was
	err      error  // the error of the choice, for every library
}

func (c *choice) provide(name string, d Device) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.provided == nil {
		c.provided = map[string]Device{}
	}
	c.provided[name] = d
}

func (c *choice) use(name string) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.settled != "" && c.name != name {
		return fmt.Errorf("the device %q cannot be used any more: %s was loaded before; choose the device first", name, c.settled)
	}
	if err := c.known(name); err != nil {
		return err
	}
	c.name = name
	cerr.InProgram()
	return nil
}

// known returns an error if the program does not have the device.
func (c *choice) known(name string) error {
	if c.provided[name].Find != nil {
		return nil
	}
	if path, ok := packages[name]; ok {
		return fmt.Errorf("this program does not have the device %q: add to it: import _ %q", name, path)
	}
	names := slices.Sorted(maps.Keys(packages))
	return fmt.Errorf("there is no device %q, only: %s; without a name, the installed libraries say which devices there are",
		name, strings.Join(names, ", "))
}

// open selects the device that a value of Variable names.
func (c *choice) open(value string) error {
	name, options, _ := strings.Cut(value, ":")
	c.name = name
	if err := c.known(name); err != nil {
		return err
	}
	cerr.InProgram()
	return c.provided[name].Open(options)
}

// settle returns the origin of a library's functions, or nil if the library
// must be opened. All libraries get the answer of the first.
func (c *choice) settle(library string) (Lookup, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.settled == "" {
		c.settled = library
		if value := os.Getenv(Variable); c.name == "" && value != "" {
			if err := c.open(value); err != nil {
				c.err = fmt.Errorf("%s=%s: %w", Variable, value, err)
			}
		}
	}
	return c.provided[c.name].Find, c.err
}
