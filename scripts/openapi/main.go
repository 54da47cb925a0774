// Says whether what it reads is an OpenAPI document of version 3, and what is wrong with it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/getkin/kin-openapi/openapi3"
)

func main() {
	if err := validate(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func validate(input io.Reader) error {
	document, err := openapi3.NewLoader().LoadFromIoReader(input)
	if err != nil {
		return err
	}
	return document.Validate(context.Background())
}
