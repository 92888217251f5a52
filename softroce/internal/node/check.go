// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"fmt"
	"os"
)

// CheckVariable is the environment variable that chooses whether the memory of
// requests is checked if SetCheck was not called.
const CheckVariable = "VERBENA_CHECK"

// Check says whether the memory of requests is checked.
type Check int

// Whether the memory of requests is checked.
const (
	NoCheck        Check = iota
	ReportingCheck       // a mistake is reported
	AbortingCheck        // a mistake is reported and ends the process
)

// parseCheck returns the Check that options choose.
func parseCheck(options string) (Check, error) {
	switch options {
	case "", "0":
		return NoCheck, nil
	case "1":
		return ReportingCheck, nil
	case "abort":
		return AbortingCheck, nil
	}
	return NoCheck, fmt.Errorf("check is %q: want 0, 1 or abort", options)
}

// SetCheck chooses whether the memory of requests is checked: "1" and "abort"
// choose it, "0" does not. Empty options leave the choice to the environment.
// SetCheck fails for other options. It also fails after the first use of the
// device, unless the choice is the one in use.
func SetCheck(options string) error {
	wanted, err := parseCheck(options)
	if err != nil {
		return err
	}
	choices.Lock()
	defer choices.Unlock()
	if choices.made {
		if inUse, err := parseCheck(choices.check); err != nil || inUse != wanted {
			return errInUse
		}
		return nil
	}
	choices.check = options
	return nil
}

// CheckCheck fails if the environment has options that SetCheck would refuse.
func CheckCheck() error {
	_, err := checkOfEnvironment()
	return err
}

// chosenCheck returns what SetCheck or the environment chose.
func chosenCheck() (Check, error) {
	choices.Lock()
	defer choices.Unlock()
	choices.made = true
	if choices.check == "" {
		choices.check = os.Getenv(CheckVariable)
		return checkOfEnvironment()
	}
	return parseCheck(choices.check)
}

// checkOfEnvironment returns the Check that the environment chooses.
func checkOfEnvironment() (Check, error) {
	text := os.Getenv(CheckVariable)
	c, err := parseCheck(text)
	if err != nil {
		return c, fmt.Errorf("%s=%s: %w", CheckVariable, text, err)
	}
	return c, nil
}
