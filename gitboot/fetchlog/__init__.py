"""Store the fetches of machines from endpoints and mirrors until the controller reads them."""
