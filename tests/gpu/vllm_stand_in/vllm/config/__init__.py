VllmConfig = object
