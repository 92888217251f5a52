// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/verbena-go/verbena/gen/internal/emit"

func runEmit(facts, out, skeleton, libraries string) error {
	all, err := emit.LoadAll(facts)
	if err != nil {
		return err
	}
	for _, in := range all {
		if err := emit.Emit(in, out); err != nil {
			return err
		}
	}
	if all[0].Base != nil || all[0].Alone { // the skeleton is made from libibverbs and librdmacm only
		return nil
	}
	if err := emit.Skeleton(all[0], skeleton); err != nil {
		return err
	}
	return emit.Libraries(all[0], libraries)
}
