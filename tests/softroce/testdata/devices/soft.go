//go:build soft

package main

import "github.com/verbena-go/verbena/softroce"

func init() { use = func() error { return softroce.Use(softroce.Config{}) } }
